"""The algorithm as a small transition system, explored exhaustively; its runs are played by production code too."""
