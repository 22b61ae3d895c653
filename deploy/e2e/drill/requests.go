package drill

import (
	"slices"

	"github.com/hiddeco/sshsig"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/statement"
)

func mayCall(role optionsv1.Role, m protoreflect.MethodDescriptor) bool {
	callers, _ := proto.GetExtension(m.Options(), optionsv1.E_Callers).([]optionsv1.Role)
	return slices.Contains(callers, role)
}

func newMessage(d protoreflect.MessageDescriptor) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		panic(err) // every message of the contract is linked
	}
	return t.New().Interface()
}

// requests are an empty request and one in which every field that means something holds something that would do.
func (w *world) requests(d protoreflect.MessageDescriptor, operation string, h *callv1.HumanStatement, g *callv1.SignedGrant) []proto.Message {
	plausible := newMessage(d)
	w.fill(plausible.ProtoReflect(), operation, h, g)
	return []proto.Message{newMessage(d), plausible}
}

func (w *world) fill(m protoreflect.Message, operation string, h *callv1.HumanStatement, g *callv1.SignedGrant) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.IsList() || f.IsMap() {
			continue
		}
		switch {
		case f.Kind() == protoreflect.MessageKind:
			switch f.Message().FullName() {
			case "durward.call.v1.HumanStatement":
				m.Set(f, protoreflect.ValueOfMessage(h.ProtoReflect()))
			case "durward.call.v1.SignedGrant":
				m.Set(f, protoreflect.ValueOfMessage(g.ProtoReflect()))
			case "durward.call.v1.ToolRef":
				m.Set(f, protoreflect.ValueOfMessage(w.tool("start_service").Ref().ProtoReflect()))
			}
		case f.Name() == "operation_id":
			m.Set(f, protoreflect.ValueOfString(operation))
		case f.Name() == "service_id":
			m.Set(f, protoreflect.ValueOfString(idle))
		case f.Name() == "arguments" && f.Kind() == protoreflect.BytesKind:
			m.Set(f, protoreflect.ValueOfBytes(arguments(idle)))
		case f.Name() == "reason":
			m.Set(f, protoreflect.ValueOfString("drill"))
		case f.Name() == "use":
			m.Set(f, protoreflect.ValueOfUint32(1))
		case f.Name() == "no_follow":
			m.Set(f, protoreflect.ValueOfBool(true))
		}
	}
}

// badStatements are statements that approve exactly what is asked, signed by everybody but the operator, and statements of
// the operator about something else.
func (w *world) badStatements(good *statement.Statement) []*callv1.HumanStatement {
	w.t.Helper()
	edited := func(edit func(*statement.Statement)) *statement.Statement {
		st := *good
		st.ID = grant.NewID()
		edit(&st)
		return &st
	}
	mallory := edited(func(st *statement.Statement) { st.Operator = "mallory" })
	asCommand := edited(func(st *statement.Statement) {
		st.Kind, st.Principal, st.Session, st.Channel = statement.KindCommand, statement.CommandPrincipal(st.Operator), "-", "cli"
	})
	malloryCommand := edited(func(st *statement.Statement) {
		st.Kind, st.Operator = statement.KindCommand, "mallory"
		st.Principal, st.Session, st.Channel = statement.CommandPrincipal("mallory"), "-", "cli"
	})
	raw, err := good.Marshal()
	w.must(err)
	out := []*callv1.HumanStatement{
		w.sign(good, w.other), w.sign(mallory, w.other), w.sign(asCommand, w.other), w.sign(malloryCommand, w.other),
		// The operator's key, for another purpose.
		w.signAs(raw, w.signer, "git", sshsig.HashSHA512),
		w.signAs(raw, w.signer, "file", sshsig.HashSHA512),
		w.signAs(raw, w.signer, "durward-approval ", sshsig.HashSHA512),
		w.signAs(raw, w.signer, statement.Namespace, sshsig.HashSHA256),
		// The operator's signature, about something else.
		{Statement: raw, Signature: w.sign(edited(func(*statement.Statement) {}), w.signer).GetSignature()},
		{Statement: raw, Signature: []byte("-----BEGIN SSH SIGNATURE-----\n-----END SSH SIGNATURE-----\n")},
		{Statement: raw, Signature: []byte("none")},
		{Statement: append(slices.Clone(raw), '\n'), Signature: w.signAs(append(slices.Clone(raw), '\n'), w.signer, statement.Namespace, sshsig.HashSHA512).GetSignature()},
	}
	for _, edit := range []func(*statement.Statement){
		func(st *statement.Statement) { st.Operation = grant.NewID() },
		func(st *statement.Statement) { st.Principal = "agent-x" },
		func(st *statement.Statement) { st.Session = "s-other" },
		func(st *statement.Statement) { st.Channel = "cli" },
		func(st *statement.Statement) { st.Audience = w.h.Identity("executor/elsewhere").String() },
		func(st *statement.Statement) { st.Epoch += 7 },
		func(st *statement.Statement) { st.Tier = "READ" },
		func(st *statement.Statement) {
			ref := statement.ToolOf(w.tool("stop_service").Ref())
			st.Tool = &ref
		},
		func(st *statement.Statement) { st.Arguments, st.ArgumentsDigest = otherArgumentsOf(spare) },
	} {
		out = append(out, w.sign(edited(edit), w.signer))
	}
	genuine := w.sign(good, w.signer)
	for i := 0; i < len(genuine.GetSignature()); i += 3 {
		flipped := proto.CloneOf(genuine)
		flipped.Signature[i] ^= 1 << (i % 7)
		if !sameSignature(flipped, genuine) {
			out = append(out, flipped)
		}
	}
	for i := 0; i < len(genuine.GetStatement()); i += 5 {
		flipped := proto.CloneOf(genuine)
		flipped.Statement[i] ^= 1 << (i % 7)
		out = append(out, flipped)
	}
	return out
}

// sameSignature reports whether two statements carry one signature, perhaps written differently: a changed line break or
// padding bit of the armour is no forgery.
func sameSignature(a, b *callv1.HumanStatement) bool {
	one, err := sshsig.Unarmor(a.GetSignature())
	if err != nil {
		return false
	}
	other, err := sshsig.Unarmor(b.GetSignature())
	return err == nil && one.Namespace == other.Namespace && one.HashAlgorithm == other.HashAlgorithm &&
		slices.Equal(one.Signature.Blob, other.Signature.Blob) && slices.Equal(one.PublicKey.Marshal(), other.PublicKey.Marshal())
}
