from .shapes import Colour, Point

__all__ = ["Colour", "Point"]
