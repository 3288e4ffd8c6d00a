package router

import (
	"bytes"
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"

	"warmpath/schemas/decided"
	pb "warmpath/schemas/warmpathv1"
)

// Content types of requests and answers. Who asks in JSON may accept protobuf: then
// the decision in the answer can be published as it is.
const (
	contentJSON     = "application/json"
	contentProtobuf = "application/x-protobuf"
)

// encode appends an answer to dst, and returns its content type.
func encode(dst []byte, response *pb.RouteResponse, inJSON bool) (data []byte, contentType string, err error) {
	if inJSON {
		data, err = protojson.MarshalOptions{}.MarshalAppend(dst, response)
		return data, contentJSON, err
	}
	data, err = decided.AppendAnswer(dst, response)
	return data, contentProtobuf, err
}

// Headers of an answer, over NATS and HTTP, about what a text became: for people,
// and not part of a decision.
const (
	// headerTextBytes is the length of a prompt's text as the router rendered it.
	headerTextBytes = "Warmpath-Text-Bytes"
	// headerUnkeyed is why a text was routed by load alone.
	headerUnkeyed = "Warmpath-Unkeyed"
)

// isJSON says whether a request over NATS is in JSON. A protobuf request cannot
// begin with a brace: that would be a group.
func isJSON(contentType string, data []byte) bool {
	return contentType == contentJSON || len(data) > 0 && data[0] == '{'
}

// decodeJSON reads a RouteRequest in protobuf's JSON form, in which the chat may
// be the object itself instead of its bytes in base64.
func decodeJSON(body []byte) (*pb.RouteRequest, error) {
	q := &pb.RouteRequest{}
	from, to := chatObject(body)
	if from == to {
		return q, protojson.Unmarshal(body, q)
	}
	rest := make([]byte, 0, len(body)-(to-from)+2)
	rest = append(append(append(rest, body[:from]...), `""`...), body[to:]...)
	if err := protojson.Unmarshal(rest, q); err != nil {
		return q, err
	}
	q.Chat = body[from:to:to]
	return q, nil
}

// chatObject finds the value of the member chat where it is an object; from and
// to are equal when there is none. Anything strange is left to the decoder.
func chatObject(body []byte) (from, to int) {
	if !bytes.Contains(body, []byte(`"chat"`)) {
		return 0, 0
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return 0, 0
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return 0, 0
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return 0, 0
		}
		end := int(d.InputOffset())
		if name == "chat" && len(value) > 0 && value[0] == '{' && bytes.HasSuffix(body[:end], value) {
			return end - len(value), end
		}
	}
	return 0, 0
}
