"""What is added to modules of several processes without another class."""

__all__: list[str] = []
