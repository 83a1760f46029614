module pdx.dev/cluster/pdx-pause

go 1.26.0
