"""Retrieval: which images of many show what a query shows.

    descriptors ─ vocabulary ─ words ─┐
                                      ├─ index (on disk) ─ ranked images ─ verified, ranked again ─ answers
    regional grid ─ pooling ──────────┘

The modules stand in that order: `options`, `vocabulary`, `words`, `pooling`, `keeping`, `extraction`; the
index in `arrays`, `segment`, `scoring`, `manifest`, `index`; what is done with it in `building`,
`distributed`, `mending`, `searching`, `linking`, `duplicates`, `sheet`.
"""
