package main

// The part of Grafana's dashboard model that is used here, in its order.

type dashboard struct {
	UID           string     `json:"uid"`
	Title         string     `json:"title"`
	Description   string     `json:"description"`
	Tags          []string   `json:"tags"`
	SchemaVersion int        `json:"schemaVersion"`
	Version       int        `json:"version"`
	Editable      bool       `json:"editable"`
	GraphTooltip  int        `json:"graphTooltip"`
	Timezone      string     `json:"timezone"`
	Refresh       string     `json:"refresh"`
	Time          timeRange  `json:"time"`
	Templating    templating `json:"templating"`
	Panels        []panel    `json:"panels"`
}

type timeRange struct {
	From string `json:"from"`
	To   string `json:"to"`
}

type templating struct {
	List []variable `json:"list"`
}

type variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"`
	Query      string      `json:"query"`
	Datasource *datasource `json:"datasource,omitempty"`
	Refresh    int         `json:"refresh"`
	Multi      bool        `json:"multi"`
	IncludeAll bool        `json:"includeAll"`
	Current    *current    `json:"current,omitempty"`
}

type current struct {
	Text  string `json:"text"`
	Value string `json:"value"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type panel struct {
	ID          int         `json:"id"`
	Type        string      `json:"type"`
	Title       string      `json:"title"`
	Description string      `json:"description,omitempty"`
	Datasource  *datasource `json:"datasource,omitempty"`
	GridPos     gridPos     `json:"gridPos"`
	FieldConfig fieldConfig `json:"fieldConfig"`
	Options     any         `json:"options,omitempty"`
	Targets     []target    `json:"targets,omitempty"`
}

type gridPos struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

type fieldConfig struct {
	Defaults  fieldDefaults `json:"defaults"`
	Overrides []override    `json:"overrides"`
}

type fieldDefaults struct {
	Unit     string   `json:"unit,omitempty"`
	Decimals *int     `json:"decimals,omitempty"`
	Min      *float64 `json:"min,omitempty"`
	Max      *float64 `json:"max,omitempty"`
	NoValue  string   `json:"noValue,omitempty"`
	Custom   any      `json:"custom,omitempty"`
}

type override struct {
	Matcher    matcher    `json:"matcher"`
	Properties []property `json:"properties"`
}

type matcher struct {
	ID      string `json:"id"`
	Options string `json:"options"`
}

type property struct {
	ID    string `json:"id"`
	Value any    `json:"value"`
}

// target is a query: to ClickHouse with rawSql, to Prometheus with expr.
type target struct {
	RefID         string      `json:"refId"`
	Datasource    *datasource `json:"datasource"`
	EditorType    string      `json:"editorType,omitempty"`
	QueryType     string      `json:"queryType,omitempty"`
	Format        any         `json:"format,omitempty"`
	RawSQL        string      `json:"rawSql,omitempty"`
	PluginVersion string      `json:"pluginVersion,omitempty"`
	Expr          string      `json:"expr,omitempty"`
	LegendFormat  string      `json:"legendFormat,omitempty"`
}

// pluginVersion of the ClickHouse data source whose query model this is.
const pluginVersion = "4.11.1"

var (
	clickhouse = &datasource{Type: "grafana-clickhouse-datasource", UID: "${datasource}"}
	prometheus = &datasource{Type: "prometheus", UID: "${prometheus}"}
)
