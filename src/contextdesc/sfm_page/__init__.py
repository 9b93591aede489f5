"""The reconstruction page: one HTML file with the sparse cloud, its cameras and photographs, for any browser.

A COLMAP model, features and photographs come in (`content`, `thumbnails`), the first view is chosen (`view`),
and everything is embedded in a page that needs no network and no server (`writer`; `*.html, *.css, *.js`).
"""

from contextdesc.sfm_page.writer import write_page

__all__ = ["write_page"]
