"""A sampling run: wrappers put each model call under the cache's gate and the engine, and record the outcome.

In: ComfyUI's wrapped calls, with their ``transformer_options``, and the settings attached to the patcher. Out: the
model's output, and a ``RunReport`` in the output's ``ReportBox``.
Laws: a run's state lives in ``SamplingRun`` and ends with it, also by an error or an interrupt; hooks are on the blocks
for one call only; a call that cannot be followed is computed exactly and says why; exceptions pass unchanged; at most
one number a call is read back from the device to tell its noise level.
"""
