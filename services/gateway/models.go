package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"warmpath/services/gateway/apikey"
)

// model is an entry of GET /v1/models.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// Parent is the model that an adapter belongs to.
	Parent string `json:"parent,omitempty"`
}

// models are what the live replicas serve, then the adapters: those they list,
// and those of the configuration.
func (g *Gateway) models() []model {
	created := map[string]int64{}
	parents := map[string]string{}
	for _, e := range g.view.Live() {
		seconds := e.StartedUs / 1e6
		if first, known := created[e.Model]; !known || seconds < first {
			created[e.Model] = seconds
		}
		for _, lora := range e.Loras {
			parents[lora] = e.Model
		}
	}
	models := []model{}
	for id, seconds := range created {
		models = append(models, model{ID: id, Object: "model", Created: seconds, OwnedBy: "warmpath"})
	}
	byID := func(a, b model) int { return strings.Compare(a.ID, b.ID) }
	slices.SortFunc(models, byID)
	if len(models) == 0 {
		return models
	}
	for _, lora := range g.cfg.LoRAs {
		if _, listed := parents[lora]; !listed {
			parents[lora] = models[0].ID
		}
	}
	served := len(models)
	for lora, parent := range parents {
		models = append(models, model{ID: lora, Object: "model", Created: created[parent], OwnedBy: "warmpath", Parent: parent})
	}
	slices.SortFunc(models[served:], byID)
	return models
}

// modelsFor are the models that a request's key may use.
func (g *Gateway) modelsFor(client *apikey.Client) []model {
	return slices.DeleteFunc(g.models(), func(m model) bool { return mayUse(client, m.ID) != nil })
}

// serveModels lists the models, or describes the one that the path names.
func (g *Gateway) serveModels(w http.ResponseWriter, r *http.Request) {
	client, failure := g.authorize(r.Header)
	if failure != nil {
		g.reject(w, client, failure)
		return
	}
	models := g.modelsFor(client)
	var answer any = map[string]any{"object": "list", "data": models}
	if id := r.PathValue("id"); id != "" {
		i := slices.IndexFunc(models, func(m model) bool { return m.ID == id })
		if i < 0 {
			(&apiError{
				status: http.StatusNotFound, kind: "invalid_request_error", code: "model_not_found", param: "model",
				message: fmt.Sprintf("model %.200q is not served here; use one of GET /v1/models", id),
			}).write(w)
			return
		}
		answer = models[i]
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client may be gone
}
