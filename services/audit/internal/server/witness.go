package server

import (
	"context"
	"errors"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/cosigned"
	"durward.internal/services/platform/fault"
)

// witnessService is for the relay, and gives operators proofs. It shows checkpoints and proofs, which tell nothing of any record, and takes
// cosignatures, each of which is verified before it is kept.
type witnessService struct {
	auditv1.UnimplementedWitnessServiceServer
	*Server
}

func (s witnessService) GetCheckpoint(context.Context, *auditv1.GetCheckpointRequest) (*auditv1.GetCheckpointResponse, error) {
	if err := s.leads(); err != nil {
		return nil, err
	}
	_, checkpoint := s.cfg.Log.Newest()
	return &auditv1.GetCheckpointResponse{Checkpoint: checkpoint}, nil
}

func (s witnessService) GetConsistency(ctx context.Context, req *auditv1.GetConsistencyRequest) (*auditv1.GetConsistencyResponse, error) {
	proof, err := s.cfg.Log.Consistency(ctx, req.GetOldSize(), req.GetNewSize())
	return &auditv1.GetConsistencyResponse{Consistency: proof}, err
}

func (s witnessService) AddCosignatures(ctx context.Context, req *auditv1.AddCosignaturesRequest) (*auditv1.AddCosignaturesResponse, error) {
	if s.cfg.Cosigned == nil {
		return nil, fault.New(callv1.Code_CODE_UNAVAILABLE, "this process keeps no cosignatures")
	}
	if err := s.leads(); err != nil {
		return nil, err
	}
	err := s.cfg.Cosigned.Add(ctx, req.GetCheckpoint(), req.GetCosignatures())
	switch {
	case errors.Is(err, cosigned.ErrInvalid):
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "a cosignature does not stand: it is of no witness in audit's trust folder, or of no checkpoint of this log",
			fault.WithField("cosignatures"), fault.WithCause(err))
	case errors.Is(err, cosigned.ErrLess):
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "what is kept says more: a quorum cosigned it, or it is newer", fault.WithField("checkpoint"))
	case err != nil:
		return nil, unreadable(err)
	}
	return &auditv1.AddCosignaturesResponse{}, nil
}

// witnessed returns the newest cosigned checkpoint, and the proof that the tree of that size extends it; nothing where there is none.
func (s *Server) witnessed(ctx context.Context, size uint64) (signed []byte, proof [][]byte, err error) {
	if s.cfg.Cosigned == nil {
		return nil, nil, nil
	}
	signed, known := s.cfg.Cosigned.Newest()
	if len(signed) == 0 || known > size {
		return nil, nil, nil
	}
	proof, err = s.cfg.Log.Consistency(ctx, known, size)
	return signed, proof, err
}
