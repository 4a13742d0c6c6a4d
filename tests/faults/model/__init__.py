"""The algorithm as a small transition system, explored exhaustively, and its traces replayed through production code."""
