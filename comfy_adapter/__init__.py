"""Everything that touches ComfyUI. It translates between ComfyUI and the rooms below, and decides nothing itself.

In: a MODEL and a node's validated settings (``apply.py``). Out: a patched clone, and the report of its last run.
``streaming/`` brings weights, ``sampling/`` runs calls, ``families/`` finds the blocks; a node's settings reach them
by ``attachments.py``. Laws: no attribute is patched into ``comfy``, versions are told by feature, never by number
(``versions.py``), and a fallback is logged and stands in the report. Imported when a node executes, so that the pack
loads in a ComfyUI that lacks something and the node can name it.
"""
