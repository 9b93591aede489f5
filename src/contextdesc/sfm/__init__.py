"""Structure from motion: a folder of photographs comes in, cameras and 3D points go out, through COLMAP.

In the order of data: `pairs` to match, `cameras`, `database`, `verification`, `mapping` and `summary`;
`pipeline` runs them all, `project` fills a database that COLMAP made, `binding` is the way to pycolmap.
"""
