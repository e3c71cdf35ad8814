"""Runs ComfyUI's ``main.py`` in a process of its own: ``python comfyui_server_main.py FOLDER [arguments]``,
with that folder in ``PYTHONPATH``.

Folders named in an ``extra_model_paths.yaml`` beside ``main.py`` are left out: tests use their own alone.
"""

import runpy
import sys

import comfy.options  # from ComfyUI

comfyui = sys.argv.pop(1)

comfy.options.enable_args_parsing()

import utils.extra_config  # noqa: E402  reads the command line

utils.extra_config.load_extra_path_config = lambda path: None
sys.argv[0] = f"{comfyui}/main.py"
runpy.run_path(sys.argv[0], run_name="__main__")
