"""Real evaluation data as task items: read from local files or the Hub, counted, with the rejected rows named."""
