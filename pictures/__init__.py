"""What the pack draws and measures on pictures: the run's chart, PSNR and SSIM. No comfy; libraries lazily."""
