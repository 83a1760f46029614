// Command etcd is the etcd server at the version Kubernetes requires: etcd's own command is in a module that others cannot require.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
