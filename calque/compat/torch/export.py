"""`torch.export`: refused by name."""

from calque.compat.refused import refused, refused_class

__all__ = ["Dim", "ExportedProgram", "export", "load", "save"]

Dim, ExportedProgram = refused_class("torch.export.Dim"), refused_class("torch.export.ExportedProgram")
export, load, save = refused("torch.export.export"), refused("torch.export.load"), refused("torch.export.save")
