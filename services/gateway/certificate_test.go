package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writeCertificate makes a certificate for 127.0.0.1 with a serial number.
func writeCertificate(t *testing.T, folder string, serial int64) (certFile, keyFile string, roots *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	for name, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AddCert(parsed)
	return certFile, keyFile, roots
}

func TestTLS(t *testing.T) {
	e := newEnv(t)
	n := e.engine("engine-0", nil)
	e.router(choose(n))
	folder := t.TempDir()
	certFile, keyFile, roots := writeCertificate(t, folder, 1)
	g := e.gateway(1, Config{TLSCert: certFile, TLSKey: keyFile})
	if !strings.HasPrefix(g.Address(), "https://") {
		t.Errorf("address %s", g.Address())
	}
	ask := func(roots *x509.CertPool) (serial int64) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		response, err := (&http.Client{Transport: transport}).Post(g.Address()+completionsPath, "application/json", strings.NewReader(prompt(40, `,"stream":true`)))
		if err != nil {
			return 0
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
			t.Errorf("got %s over %s", response.Status, response.Proto)
		}
		return response.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	if serial := ask(roots); serial != 1 {
		t.Errorf("the certificate has number %d", serial)
	}
	_, _, roots = writeCertificate(t, folder, 2)
	e.until("the new certificate", func() bool { return ask(roots) == 2 })
	e.stories(g)
}

func TestTLSConfiguration(t *testing.T) {
	e := newEnv(t)
	for words, cfg := range map[string]Config{
		"give both":  {TLSCert: "x"},
		"--tls-cert": {TLSCert: "none.crt", TLSKey: "none.key"},
	} {
		cfg.Pool, cfg.Listen = testPool, "127.0.0.1:0"
		if _, err := New(cfg, e.nc, e.js, nil); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
	for address, want := range map[string]bool{"127.0.0.1:0": true, "0.0.0.0:0": false} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if isLoopback(listener.Addr()) != want {
			t.Errorf("%s: loopback is %v", address, !want)
		}
		_ = listener.Close()
	}
}
