"""Views of a verdict: terminal, JUnit properties, plan, HTML page."""
