"""Work on many items in many processes, on this machine or on a Ray cluster; the results are shards.

`run` takes a `Task` and items by name. Which items a shard holds depends on their names alone, so the shards
are the same whoever makes them; see `contextdesc.formats.manifest` for what is written.
"""
