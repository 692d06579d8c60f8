"""Where a rank's shard lies in its tensor: mesh, placements, local shape, offset; without a collective."""


def placement_of(tensor: object) -> "dict[str, object] | None":
    """The placement of a DTensor; None for a tensor that lies whole on this rank."""
    placements = getattr(tensor, "placements", None)
    if placements is None or not hasattr(tensor, "_local_tensor"):
        return None
    mesh = tensor.device_mesh
    names = getattr(mesh, "mesh_dim_names", None)
    coordinate = mesh.get_coordinate()
    return {
        "mesh": list(mesh.mesh.shape),
        "dims": list(names) if names else [str(index) for index in range(mesh.ndim)],
        "coordinate": None if coordinate is None else [int(entry) for entry in coordinate],
        "kinds": [kind_of(placement) for placement in placements],
        "local_shape": list(tensor._local_tensor.shape),  # noqa: SLF001 - to_local() would enter the graph
        "offset": offset_of(tensor, coordinate),
    }


def kind_of(placement: object) -> str:
    """``shard(0)``, ``replicate``, ``partial(sum)``, ``strided_shard(0,2)``."""
    name = type(placement).__name__.lstrip("_").lower()
    if name == "stridedshard":
        return "strided_shard(%d,%d)" % (placement.dim, placement.split_factor)
    if name == "shard":
        return "shard(%d)" % placement.dim
    if "partial" in name:
        return "partial(%s)" % getattr(placement, "reduce_op", "sum")
    return name


def offset_of(tensor: object, coordinate: "list[int] | None") -> "list[int] | None":
    """First global index of the shard in each dimension; None where no rule here gives it.

    torch.chunk's rule, one mesh dimension after the other: parts of ceil(n / size), the last ones shorter.
    """
    if coordinate is None or any("strided" in kind_of(placement) for placement in tensor.placements):
        return None
    length, offset = list(tensor.shape), [0] * len(tensor.shape)
    for index, placement in enumerate(tensor.placements):
        if kind_of(placement).startswith("shard"):
            dim = placement.dim
            part = -(-length[dim] // tensor.device_mesh.size(index))
            start = min(coordinate[index] * part, length[dim])
            offset[dim] += start
            length[dim] = min(part, length[dim] - start)
    return offset if length == list(tensor._local_tensor.shape) else None  # noqa: SLF001 - as above
