"""What a layout of a model over GPUs needs and how fast it should be, from formulas alone: nothing is measured.

`shape` reads a model's numbers, `layout` says who shares what, `work` what there is to do and on what machine, and
`fit` what is possible; the Megatron backend trains in these layouts and refuses what `fit` does. `parameters`,
`memory`, `communication` and `step_time` are the formulas, each with its source, and `plan`, `search` and `refusal` put
them together. No torch is imported.
"""
