from .shapes import Color, Point

__all__ = ["Color", "Point"]
