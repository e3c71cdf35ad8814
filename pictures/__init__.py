"""Pictures drawn and measured: the run's chart, PSNR and SSIM. Knows nothing of ComfyUI; imports libraries late."""
