"""What a layout of a model over GPUs needs and how fast it should be, from formulas alone: nothing is measured.

`shape` reads a model's numbers, `layout` says what is possible, `parameters`, `memory`, `communication` and
`step_time` are the formulas, each with its source, and `plan` and `search` put them together. No torch is imported.
"""
