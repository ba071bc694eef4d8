"""Saving and loading: a model as a JSON description and a safetensors file, without pickle."""

from vibayes.saving.files import load, save

__all__ = ["load", "save"]
