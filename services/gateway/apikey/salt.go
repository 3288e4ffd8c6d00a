package apikey

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// CacheSalt is the cache salt of a request of this key that asks for one of its
// own, or for none with "". Keys share a salt only when their entries say so:
// what a client asks for is hashed together with whose key it is, so that nobody
// can ask for the salt of another. It is "" only for a shared key that asks for none.
func (k *Key) CacheSalt(asked string) string {
	group := ""
	switch k.Salt {
	case SaltShared:
		if asked == "" {
			return ""
		}
	case SaltOwn, "":
		group = "key " + k.Name
	default:
		group = "salt " + k.Salt
	}
	hash := sha256.New()
	for _, part := range []string{"warmpath cache salt", group, asked} {
		_, _ = hash.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(part)))) // a hash never fails
		_, _ = hash.Write([]byte(part))
	}
	return hex.EncodeToString(hash.Sum(nil)[:16])
}
