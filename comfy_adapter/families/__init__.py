"""Which blocks a model has, and how hidden states travel through them: data, and the functions that look it up.

In: a diffusion model. Out: its ``BlockStack`` (``find.py``): by the table's row for its class, or by its looks, and
then the layout has to be proven on the first call.
Laws: a class is matched exactly, since a subclass may have a loop of its own; a model without a stack of blocks with a
forward is refused by name; rows are data, without a branch elsewhere; no import of ComfyUI.
"""
