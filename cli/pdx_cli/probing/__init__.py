"""`pdx probe`: hand-offs between two engines, whoever runs them, and what their answers prove.

`question` parses what is asked. `engines` inspects both engines, `legs` sends hand-offs, and `session` performs all
steps. `trial`, `judgement`, `causes` and `report` are pure.
"""
