"""The summary and what is made of it: terminal, Markdown, HTML, templates."""
