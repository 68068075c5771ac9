"""Everything that touches vLLM: the plugin, the connector, the scheduler mixin and the runner patch."""
