package gateway

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// model is an entry of GET /v1/models.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

// serveModels lists what the live replicas serve, and the adapters.
func (g *Gateway) serveModels(w http.ResponseWriter, _ *http.Request) {
	created := map[string]int64{}
	for _, e := range g.view.Live() {
		seconds := e.StartedUs / 1e6
		if first, known := created[e.Model]; !known || seconds < first {
			created[e.Model] = seconds
		}
	}
	models := []model{}
	for id, seconds := range created {
		models = append(models, model{ID: id, Object: "model", Created: seconds, OwnedBy: "warmpath"})
	}
	slices.SortFunc(models, func(a, b model) int { return strings.Compare(a.ID, b.ID) })
	if len(models) > 0 {
		for _, lora := range g.cfg.LoRAs {
			models = append(models, model{ID: lora, Object: "model", Created: models[0].Created, OwnedBy: "warmpath"})
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": models}) // the client may be gone
}
