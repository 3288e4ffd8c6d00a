// Package warmpathv1 is the generated Go form of the events in
// schemas/warmpath/v1/events.proto.
package warmpathv1
