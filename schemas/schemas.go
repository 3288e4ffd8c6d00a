// Package schemas is the contract: the event messages in warmpath/v1 and their
// generated Go in warmpathv1, the ClickHouse tables, and the block key vectors.
package schemas

import "embed"

// Tables holds the ClickHouse migrations, tables/NNNN_name.sql, numbered from
// 0001 without gaps, one statement a file. Files that were released never
// change; a change of the schema is a further file.
//
//go:embed tables/*.sql
var Tables embed.FS

// KeyVectors is a JSON document of block key test vectors: tokens in, keys out.
// It explains its own form, so that another language can be checked against it.
//
//go:embed testdata/blockkey_vectors.json
var KeyVectors []byte
