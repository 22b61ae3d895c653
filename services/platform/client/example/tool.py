"""An internal program: `tool.py CONNECT_JSON MODE`, with what protoc makes of the contract on PYTHONPATH. main.go is the same in Go."""
import json, sys, threading
import grpc
from durward.call.v1.call_pb2 import ToolRef
from durward.executor.v1 import events_pb2, events_pb2_grpc, tools_pb2, tools_pb2_grpc
from durward.options.v1.options_pb2 import ROLE_EXECUTOR, ROLE_VAULT
from durward.vault.v1 import session_pb2, session_pb2_grpc

conf, mode = json.load(open(sys.argv[1])), sys.argv[2]
pem = [open(name, "rb").read() for name in (conf["trust_dir"] + "/ca.pem", conf["key"], conf["certificate"])]

def connect(peer):  # its certificate must name the peer's identity; the brackets keep gRPC from taking "spiffe" for a host
    options = [("grpc.ssl_target_name_override", "[%s]" % peer["identity"])]
    return grpc.secure_channel(peer["address"].split(",")[0], grpc.ssl_channel_credentials(*pem), options)

def follow(changes):
    for change in changes:
        print("state", change.service_id, change.state)

vault, executor = connect(conf["vault"]), connect(conf["executor"])
session = session_pb2_grpc.SessionServiceStub(vault).OpenSession(session_pb2.OpenSessionRequest(client_name="tool.py"))
permit = {p.role: [("durward-permit-bin", p.permit.SerializeToString())] for p in session.permits}
tools = tools_pb2_grpc.ToolServiceStub(executor)
print("services", tools.ListServices(tools_pb2.ListServicesRequest(), metadata=permit[ROLE_EXECUTOR]))
changes = events_pb2_grpc.EventServiceStub(executor).WatchServices(events_pb2.WatchServicesRequest(), metadata=permit[ROLE_EXECUTOR])
threading.Thread(target=follow, args=(changes,), daemon=True).start()
plan = tools.SimulateMode(tools_pb2.SimulateModeRequest(mode_id=mode), metadata=permit[ROLE_EXECUTOR]).plan_digest
wanted = json.dumps({"mode_id": mode, "plan_digest": plan}, separators=(",", ":"), sort_keys=True).encode()
ref = ToolRef(name="switch_mode", source="native", definition_digest=bytes.fromhex(conf["tools"]["switch_mode"]))
asked = session_pb2_grpc.AuthorityServiceStub(vault).Authorise(session_pb2.AuthoriseRequest(session_id=session.session_id, tool=ref, arguments=wanted))
waited = session_pb2_grpc.ToolServiceStub(vault).WaitOperation(session_pb2.WaitOperationRequest(operation_id=asked.operation_id), metadata=permit[ROLE_VAULT])
granted = [("durward-grant-bin", waited.grant.SerializeToString())]  # a human agreed
print("switched", tools.SwitchMode(tools_pb2.SwitchModeRequest(mode_id=mode, plan_digest=plan), metadata=granted).mode_id)
own = session_pb2_grpc.OperationServiceStub(vault).ListSessionOperations(session_pb2.ListSessionOperationsRequest(), metadata=permit[ROLE_VAULT])
print("history", own)
