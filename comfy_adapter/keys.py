"""The names under which the pack keeps things in ComfyUI's own dictionaries."""

WRAPPER_KEY = "dit_layerwise_offload"
RUN_KEY = "dit_layerwise_offload_run"
DBCACHE_KEY = "dit_layerwise_offload_dbcache"
REPORT_KEY = "dit_layerwise_offload_report"
ENGINE_KEY = "dit_layerwise_offload_engine"
DBCACHE_NODE_KEY = "dit_layerwise_offload_dbcache_node"
