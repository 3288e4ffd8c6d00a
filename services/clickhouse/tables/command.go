package tables

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
)

// Command is `warmpath tables`.
type Command struct {
	Apply ApplyCommand `cmd:"" help:"Execute the migrations that the database lacks. Safe to run again, and by several at once."`
	Check CheckCommand `cmd:"" help:"Print the migrations that the database lacks; exit 0 when it has them all."`
}

// ApplyCommand is `warmpath tables apply`.
type ApplyCommand struct {
	Connection
	JSON bool `help:"Print the result as JSON."`
}

// Run applies, and prints what it did.
func (c *ApplyCommand) Run(ctx context.Context) error {
	conn, err := c.Open()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // everything that mattered was answered
	done, err := Apply(ctx, conn)
	if printErr := print(done, "applied", c.JSON); printErr != nil && err == nil {
		err = printErr
	}
	return err
}

// CheckCommand is `warmpath tables check`.
type CheckCommand struct {
	Connection
	JSON bool `help:"Print the result as JSON."`
}

// Run checks, and prints what is missing.
func (c *CheckCommand) Run(ctx context.Context) error {
	conn, err := c.Open()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // everything that mattered was answered
	lacks, err := Check(ctx, conn)
	if err != nil {
		return err
	}
	if err := print(lacks, "missing", c.JSON); err != nil {
		return err
	}
	if len(lacks) > 0 {
		return fmt.Errorf("%d migrations are missing; run `warmpath tables apply`", len(lacks))
	}
	return nil
}

func print(list []Applied, what string, asJSON bool) error {
	if asJSON {
		if list == nil {
			list = []Applied{}
		}
		return json.NewEncoder(os.Stdout).Encode(map[string]any{what: list})
	}
	for _, m := range list {
		fmt.Printf("%s %04d_%s\n", what, m.Version, m.Name)
	}
	if len(list) == 0 {
		fmt.Println("the tables are as they should be")
	}
	return nil
}
