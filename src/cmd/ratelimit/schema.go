package main

import (
	"github.com/spf13/cobra"

	"ratelimit/api"
)

func schemaCommand(std stdio) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of rule files, for editors",
		Long: `schema prints the JSON Schema of rule files (draft 7), with which editors
complete keys and values, explain them, and underline what is wrong. It cannot
tell all that is wrong with a file: ratelimit check can.`,
		Example: `  ratelimit schema > ratelimit.schema.json
  sed -i '1i # yaml-language-server: $schema=ratelimit.schema.json' rules.yaml`,
		Args: noWords,
		RunE: func(*cobra.Command, []string) error {
			_, err := std.out.Write(api.Schema)
			return err
		},
	}
}
