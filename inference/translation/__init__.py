"""The pages of batch translation, and the jobs behind them."""
