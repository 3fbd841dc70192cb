"""Grammars of tool calls, one module a markup."""
