"""From labels to weights: the losses, the objectives made of them, and the loop that minimises them."""
