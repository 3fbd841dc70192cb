"""How families of models mark up reasoning and tool calls, and how that is told from template and vocabulary."""
