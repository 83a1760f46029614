"""Results as documents: the run as JSON, the keys of other tools, and the report as a page. Pure, except `files`."""
