"""The copy engine: tensor maps and their boxes, bulk copies, bulk groups, bulk reductions."""
