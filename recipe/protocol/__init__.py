"""The three wire protocols, and the rules that they share."""
