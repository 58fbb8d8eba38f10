"""Tool calls: how models write them, what they may write, and how it is read."""
