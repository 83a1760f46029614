"""The documentation site: which pages it has, and how they become a static folder without a network.

Pages are written for a plain viewer of repositories (GitHub's Markdown, links between files). Staging copies them below
one folder, rewrites links and normalises lists, and MkDocs renders that folder strictly.
"""
