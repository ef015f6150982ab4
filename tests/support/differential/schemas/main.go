// Writes the JSON schemas of the JetStream API, as the module jsm.go has them, into a folder.
package main

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/jsm.go/registry"
)

func main() {
	names, err := registry.SchemaSearch(`^io\.nats\.jetstream\.api\.v1\..*_response$`)
	if err != nil {
		panic(err)
	}
	for _, name := range names {
		schema, err := registry.Schema(name)
		if err != nil {
			panic(err)
		}
		file := filepath.Join(os.Args[1], name[strings.LastIndex(name, ".")+1:]+".json")
		if err := os.WriteFile(file, schema, 0o644); err != nil {
			panic(err)
		}
	}
}
