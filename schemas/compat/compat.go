// Package compat checks that a changed event schema can still be read by
// everything built against the released one, and the other way round.
package compat

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/descriptorpb"
)

// Check returns an error that lists every change from old to changed that would
// break a reader or a writer: a removed, renumbered, renamed or retyped field,
// a removed message, enum or enum value. Additions are fine. nil means compatible.
func Check(old, changed *descriptorpb.FileDescriptorProto) error {
	var errs []error
	if old.GetPackage() != changed.GetPackage() {
		errs = append(errs, fmt.Errorf("package %s became %s", old.GetPackage(), changed.GetPackage()))
	}
	errs = append(errs, checkMessages(old.GetPackage(), old.MessageType, changed.MessageType)...)
	errs = append(errs, checkEnums(old.GetPackage(), old.EnumType, changed.EnumType)...)
	return errors.Join(errs...)
}

func checkMessages(scope string, old, changed []*descriptorpb.DescriptorProto) []error {
	byName := make(map[string]*descriptorpb.DescriptorProto, len(changed))
	for _, m := range changed {
		byName[m.GetName()] = m
	}
	var errs []error
	for _, m := range old {
		name := scope + "." + m.GetName()
		now, ok := byName[m.GetName()]
		if !ok {
			errs = append(errs, fmt.Errorf("message %s was removed", name))
			continue
		}
		errs = append(errs, checkFields(name, m, now)...)
		errs = append(errs, checkMessages(name, m.NestedType, now.NestedType)...)
		errs = append(errs, checkEnums(name, m.EnumType, now.EnumType)...)
	}
	return errs
}

func checkFields(message string, old, changed *descriptorpb.DescriptorProto) []error {
	byNumber := make(map[int32]*descriptorpb.FieldDescriptorProto, len(changed.Field))
	for _, f := range changed.Field {
		byNumber[f.GetNumber()] = f
	}
	var errs []error
	for _, f := range old.Field {
		now, ok := byNumber[f.GetNumber()]
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("field %s.%s = %d was removed", message, f.GetName(), f.GetNumber()))
		case shape(old, f) != shape(changed, now):
			errs = append(errs, fmt.Errorf("field %d of %s was %q and became %q",
				f.GetNumber(), message, shape(old, f), shape(changed, now)))
		}
	}
	return errs
}

// shape is everything about a field that its encoding or its JSON form depends on.
func shape(m *descriptorpb.DescriptorProto, f *descriptorpb.FieldDescriptorProto) string {
	oneof := ""
	if f.OneofIndex != nil && !f.GetProto3Optional() {
		oneof = " in oneof " + m.OneofDecl[f.GetOneofIndex()].GetName()
	}
	return fmt.Sprintf("%v %v %s %s optional=%t%s",
		f.GetLabel(), f.GetType(), f.GetTypeName(), f.GetName(), f.GetProto3Optional(), oneof)
}

func checkEnums(scope string, old, changed []*descriptorpb.EnumDescriptorProto) []error {
	byName := make(map[string]map[int32]string, len(changed))
	for _, e := range changed {
		values := make(map[int32]string, len(e.Value))
		for _, v := range e.Value {
			values[v.GetNumber()] = v.GetName()
		}
		byName[e.GetName()] = values
	}
	var errs []error
	for _, e := range old {
		now, ok := byName[e.GetName()]
		if !ok {
			errs = append(errs, fmt.Errorf("enum %s.%s was removed", scope, e.GetName()))
			continue
		}
		for _, v := range e.Value {
			if got := now[v.GetNumber()]; got != v.GetName() {
				errs = append(errs, fmt.Errorf("value %d of enum %s.%s was %s and became %q",
					v.GetNumber(), scope, e.GetName(), v.GetName(), got))
			}
		}
	}
	return errs
}
